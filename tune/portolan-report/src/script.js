(()=>{
const make=(name,attributes)=>document.body.appendChild(Object.assign(document.createElement(name),attributes));
const tip=make("div",{className:"tip",hidden:true,ariaHidden:"true"});
const said=make("div",{className:"sr"});
said.setAttribute("aria-live","polite");
for(const plot of document.querySelectorAll(".plot")){
  for(const hit of plot.querySelectorAll(".h")){hit.says=hit.textContent;hit.replaceChildren()}
  let on=null;
  const shown=()=>[...plot.querySelectorAll(".h")].filter(hit=>hit.getClientRects().length);
  const clear=()=>{on?.classList.remove("on");on=null;tip.hidden=true};
  const say=(hit,x,y)=>{
    if(hit!==on){on?.classList.remove("on");on=hit;on.classList.add("on");tip.textContent=hit.says}
    tip.hidden=false;
    const wide=document.documentElement.clientWidth,high=innerHeight,box=tip.getBoundingClientRect();
    tip.style.left=Math.max(4,x+14+box.width>wide?x-14-box.width:x+14)+"px";
    tip.style.top=Math.max(4,Math.min(y+14,high-box.height-4))+"px";
  };
  plot.addEventListener("pointermove",event=>{
    let best=null,least=Infinity;
    for(const hit of shown()){
      const box=hit.getBoundingClientRect();
      const far=Math.hypot(Math.max(box.left-event.clientX,0,event.clientX-box.right),Math.max(box.top-event.clientY,0,event.clientY-box.bottom));
      if(far<least){least=far;best=hit}
    }
    if(best)say(best,event.clientX,event.clientY);
  });
  plot.addEventListener("pointerleave",clear);
  plot.addEventListener("blur",clear);
  plot.addEventListener("keydown",event=>{
    if(event.key==="Escape")return clear();
    const hits=shown(),at=hits.indexOf(on),last=hits.length-1;
    const to={ArrowRight:at+1,ArrowDown:at+1,ArrowLeft:at<0?last:at-1,ArrowUp:at<0?last:at-1,Home:0,End:last}[event.key];
    if(to===undefined||last<0)return;
    event.preventDefault();
    const hit=hits[Math.max(0,Math.min(last,to))],box=hit.getBoundingClientRect();
    say(hit,(box.left+box.right)/2,Math.min(box.bottom,(box.top+box.bottom)/2));
    said.textContent=hit.says;
  });
  plot.tabIndex=0;
  plot.setAttribute("role","group");
  plot.setAttribute("aria-label",plot.closest("figure").querySelector("h3").textContent+": arrow keys read the values");
}
for(const plot of document.querySelectorAll(".plot")){
  if(!plot.querySelector("polyline.l"))continue;
  let times=1;
  const bar=Object.assign(document.createElement("div"),{className:"zoom"});
  const to=(next,word)=>{
    const middle=(plot.scrollLeft+plot.clientWidth/2)/plot.scrollWidth;
    times=next;
    plot.classList.toggle("big",times>1);
    for(const svg of plot.querySelectorAll("svg"))svg.style.width=times>1?times*100+"%":"";
    plot.scrollLeft=middle*plot.scrollWidth-plot.clientWidth/2;
    less.disabled=times===1;more.disabled=times===4;
    said.textContent=word;
  };
  const button=(label,name,next)=>{
    const made=Object.assign(document.createElement("button"),{type:"button",textContent:label,title:name});
    made.setAttribute("aria-label",name);
    made.addEventListener("click",()=>to(next(),name));
    bar.append(made);
    return made;
  };
  const more=button("+","Enlarge the plot",()=>Math.min(4,times*2)),less=button("\u2212","Make the plot smaller",()=>Math.max(1,times/2));
  less.disabled=true;
  plot.after(bar);
}
for(const code of document.querySelectorAll("pre code")){
  const button=document.createElement("button");
  button.type="button";button.textContent="Copy";
  button.addEventListener("click",async()=>{
    try{await navigator.clipboard.writeText(code.textContent);button.textContent="Copied"}
    catch{getSelection().selectAllChildren(code);button.textContent="Selected"}
    said.textContent=button.textContent;
  });
  code.parentElement.after(button);
}
let closed=[];
addEventListener("beforeprint",()=>{closed=[...document.querySelectorAll("details:not([open])")];for(const box of closed)box.open=true});
addEventListener("afterprint",()=>{for(const box of closed)box.open=false});
})();
